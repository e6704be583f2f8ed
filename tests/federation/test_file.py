"""Federation files: the round trip, the digest, and every refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tests.federation.test_identity import DAY, NOW, certificate
from vfl.errors import OutputError, SpecificationError
from vfl.network.federation.file import Federation, identity_for, read_federation, write_federation
from vfl.network.federation.identity import Identity, load_identity, new_identity

if TYPE_CHECKING:
    from pathlib import Path

ADDRESS = "vfl.example.org:8443"


@pytest.fixture
def members(tmp_path: Path) -> dict[str, Identity]:
    return {name: new_identity(name, tmp_path) for name in ("hub", "telco", "bank")}


@pytest.fixture
def path(tmp_path: Path, members: dict[str, Identity]) -> Path:
    written(tmp_path / "credit.toml", members)
    return tmp_path / "credit.toml"


def written(
    path: Path,
    members: dict[str, Identity],
    *,
    name: str = "credit",
    address: str = ADDRESS,
    dealer: tuple[str, bytes] | None = None,
) -> Federation:
    """Write a federation of the members; the first is its coordinator."""
    (head, *parties) = members.items()
    return write_federation(
        path,
        name=name,
        coordinator=(head[0], head[1].certificate_pem),
        address=address,
        parties={party: identity.certificate_pem for party, identity in parties},
        dealer=dealer,
    )


class TestRoundTrip:
    def test_content(self, path: Path, members: dict[str, Identity]) -> None:
        read = read_federation(path)
        assert (read.name, read.address, read.coordinator.name) == ("credit", ADDRESS, "hub")
        assert list(read.parties) == ["telco", "bank"]
        assert list(read.members) == ["hub", "telco", "bank"]
        for name, identity in members.items():
            assert read.members[name].fingerprint == identity.fingerprint
            assert read.members[name].certificate_pem == identity.certificate_pem
        assert b"PRIVATE" not in path.read_bytes()

    def test_the_digest_is_of_the_content_and_not_of_its_spelling(
        self, path: Path, tmp_path: Path, members: dict[str, Identity]
    ) -> None:
        first = read_federation(path)
        assert len(first.digest) == 64
        other = {name: members[name] for name in ("hub", "bank", "telco")}
        assert written(tmp_path / "order.toml", other).digest == first.digest
        path.write_text("# a comment\n" + path.read_text().replace("\n-----BEGIN", "\ntext before\n-----BEGIN"))
        assert read_federation(path).digest == first.digest

    def test_each_part_of_the_content_is_in_the_digest(
        self, path: Path, tmp_path: Path, members: dict[str, Identity]
    ) -> None:
        (tmp_path / "new").mkdir()
        digests = [
            read_federation(path).digest,
            written(tmp_path / "a.toml", members, name="loans").digest,
            written(tmp_path / "b.toml", members, address="vfl.example.org:8444").digest,
            written(tmp_path / "c.toml", members | {"bank": new_identity("bank", tmp_path / "new")}).digest,
            written(tmp_path / "d.toml", members | {"hub": new_identity("hub", tmp_path / "new")}).digest,
            written(tmp_path / "e.toml", {name: members[name] for name in ("hub", "bank")}).digest,
            written(tmp_path / "f.toml", {name: members[name] for name in ("bank", "hub", "telco")}).digest,
        ]
        assert len(set(digests)) == len(digests)

    def test_a_dealer(self, path: Path, tmp_path: Path, members: dict[str, Identity]) -> None:
        notary = new_identity("notary", tmp_path)
        made = written(tmp_path / "shares.toml", members, dealer=("notary", notary.certificate_pem))
        assert made.dealer is not None
        assert (made.dealer.name, made.dealer.fingerprint) == ("notary", notary.fingerprint)
        assert list(made.parties) == ["telco", "bank"]
        assert list(made.joining) == ["telco", "bank", "notary"]
        assert list(made.members) == ["hub", "telco", "bank", "notary"]
        assert made.check_identity(notary) is made.dealer
        assert made.digest != read_federation(path).digest
        assert read_federation(path).dealer is None
        (tmp_path / "new").mkdir()
        again = new_identity("notary", tmp_path / "new")
        other = written(tmp_path / "other.toml", members, dealer=("notary", again.certificate_pem))
        assert other.digest != made.digest

    @pytest.mark.parametrize(
        ("dealer", "said"),
        [
            ("bank", "names two members 'bank': coordinator, parties and dealer need different names"),
            ("hub", "names two members 'hub'"),
        ],
    )
    def test_a_dealer_is_no_other_member(
        self, tmp_path: Path, members: dict[str, Identity], dealer: str, said: str
    ) -> None:
        with pytest.raises(SpecificationError, match=said):
            written(tmp_path / "other.toml", members, dealer=(dealer, members[dealer].certificate_pem))

    def test_a_dealer_has_a_key_of_its_own(self, tmp_path: Path, members: dict[str, Identity]) -> None:
        """Otherwise a party could deal under a second name."""
        key = load_pem_private_key(members["bank"].key_pem, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        pem = certificate("notary", key)
        with pytest.raises(SpecificationError, match=r"'bank' and 'notary'.*same key"):
            written(tmp_path / "other.toml", members, dealer=("notary", pem))

    def test_a_file_is_not_replaced(self, path: Path, members: dict[str, Identity]) -> None:
        before = path.read_text()
        with pytest.raises(OutputError, match="exists and is not replaced"):
            written(path, members)
        assert path.read_text() == before

    def test_a_folder_that_is_not_there(self, tmp_path: Path, members: dict[str, Identity]) -> None:
        with pytest.raises(OutputError, match="No such file"):
            written(tmp_path / "none" / "credit.toml", members)


class TestRefusals:
    @pytest.mark.parametrize(
        "address",
        ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "https://host:1", "a b:1", "1.2.3.4.5:1", "::1:8443",
         "[::1:8443", "[x]:1", "host:1/path", "host:１", "-host:1", "a..b:1", "host:008443"],
    )  # fmt: skip
    def test_addresses(self, tmp_path: Path, members: dict[str, Identity], address: str) -> None:
        with pytest.raises(SpecificationError, match="write HOST:PORT"):
            written(tmp_path / "other.toml", members, address=address)
        assert not (tmp_path / "other.toml").exists()

    @pytest.mark.parametrize("address", ["host:1", "10.0.0.1:65535", "[2001:db8::1]:8443", "a-b.example.org:443"])
    def test_addresses_that_are_accepted(self, tmp_path: Path, members: dict[str, Identity], address: str) -> None:
        assert written(tmp_path / "other.toml", members, address=address).address == address

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ("format = 1", "format = 2", "needs format = 1"),
            ("format = 1\n", "", "needs format = 1"),
            ('name = "credit"', 'name = "cre dit"', "cannot name a federation"),
            ('name = "credit"', "name = 3", "name must be text"),
            ('name = "credit"', "[x", "is not valid TOML"),
            ("address =", "adress =", "adress is unknown .did you mean 'address'"),
            (f'address = "{ADDRESS}"\n', "", "address is missing"),
            ("[coordinator]", "[coordinator]\nurl = 1", "url is unknown"),
            ("[coordinator]", "[coordinators]", "coordinators is unknown"),
            ("[parties.bank]", "[parties.bank]\naddress = '1'", "parties.bank.address is unknown"),
            ("[parties.bank]", "[parties.insurer]", "the certificate given for 'insurer' is that of 'bank'"),
            ("[parties.bank]", "[parties.TELCO]", "names two members 'TELCO'"),
            ('name = "hub"', 'name = "bank"', "the certificate given for 'bank' is that of 'hub'"),
            ("[parties.bank]", "[parties.'b b']", "cannot name a participant"),
            ("-----BEGIN CERTIFICATE-----\nMI", "-----BEGIN CERTIFICATE-----\nMJ", "is not a participant's certificate"),
        ],
    )  # fmt: skip
    def test_edited_files(self, path: Path, old: str, new: str, said: str) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(SpecificationError, match=said) as raised:
            read_federation(path)
        assert "\n" not in str(raised.value)

    def test_a_private_key(self, path: Path, tmp_path: Path) -> None:
        path.write_text(path.read_text() + "# " + (tmp_path / "bank.key").read_text().replace("\n", "\n# "))
        with pytest.raises(SpecificationError, match="contains a private key") as raised:
            read_federation(path)
        assert "BEGIN" not in str(raised.value)

    def test_one_key_under_two_names(self, tmp_path: Path, members: dict[str, Identity]) -> None:
        key = load_pem_private_key(members["bank"].key_pem, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        pem = certificate("insurer", key)
        with pytest.raises(SpecificationError, match=r"'bank' and 'insurer'.*same key"):
            write_federation(
                tmp_path / "other.toml",
                name="credit",
                coordinator=("hub", members["hub"].certificate_pem),
                address=ADDRESS,
                parties={"bank": members["bank"].certificate_pem, "insurer": pem},
            )

    def test_an_expired_certificate(self, tmp_path: Path, members: dict[str, Identity]) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        pem = certificate("old", ec.generate_private_key(ec.SECP256R1()), begins=NOW - 2 * DAY, ends=NOW - DAY)
        with pytest.raises(SpecificationError, match="'old' expired on"):
            write_federation(
                tmp_path / "other.toml",
                name="credit",
                coordinator=("hub", members["hub"].certificate_pem),
                address=ADDRESS,
                parties={"old": pem},
            )

    def test_no_party(self, tmp_path: Path, members: dict[str, Identity]) -> None:
        with pytest.raises(SpecificationError, match="names no party"):
            written(tmp_path / "other.toml", {"hub": members["hub"]})

    def test_files_that_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(SpecificationError, match="there is no federation file"):
            read_federation(tmp_path / "none.toml")
        with pytest.raises(SpecificationError, match="cannot read"):
            read_federation(tmp_path)
        (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
        with pytest.raises(SpecificationError, match="is not text in UTF-8"):
            read_federation(tmp_path / "latin.toml")
        (tmp_path / "large.toml").write_bytes(b"#" * (5 << 20))
        with pytest.raises(SpecificationError, match="is larger than"):
            read_federation(tmp_path / "large.toml")


class TestIdentityFor:
    def test_beside_the_file_or_named(self, path: Path, tmp_path: Path, members: dict[str, Identity]) -> None:
        federation = read_federation(path)
        assert identity_for(federation, path, "bank") == members["bank"]
        (tmp_path / "keys").mkdir()
        for file in ("bank.key", "bank.pem"):
            (tmp_path / file).rename(tmp_path / "keys" / file)
        with pytest.raises(SpecificationError, match="there is no key"):
            identity_for(federation, path, "bank")
        assert identity_for(federation, path, "bank", tmp_path / "keys" / "bank.key") == members["bank"]

    def test_refusals(self, path: Path, tmp_path: Path) -> None:
        federation = read_federation(path)
        with pytest.raises(SpecificationError, match=r"'bnk'.*did you mean 'bank'"):
            identity_for(federation, path, "bnk")
        with pytest.raises(SpecificationError, match="'telco', not to 'bank'"):
            identity_for(federation, path, "bank", tmp_path / "telco.key")
        (tmp_path / "new").mkdir()
        swapped = new_identity("bank", tmp_path / "new")
        with pytest.raises(SpecificationError, match=f"expects a different certificate.*{swapped.fingerprint}"):
            identity_for(federation, path, "bank", tmp_path / "new" / "bank.key")
        with pytest.raises(SpecificationError, match=load_identity(tmp_path / "bank.key").fingerprint):
            federation.check_identity(swapped)
