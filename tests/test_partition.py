import pickle
import tomllib

import pytest

from vfl import FeaturePartition
from vfl.errors import PartitionError

TWO = {"bank": ["income", "age"], "telco": ["calls", "data_mb"]}


def two(**options):
    return FeaturePartition(TWO, label=("bank", "default"), **options)


def test_order_owners_and_wanted_columns():
    partition = two()
    assert partition.parties == ("bank", "telco")
    assert partition.features == ("income", "age", "calls", "data_mb")
    assert partition.n_features == 4
    assert partition.columns("telco") == ("calls", "data_mb")
    assert [partition.owner(c) for c in ("age", "calls", "default")] == ["bank", "telco", "bank"]
    assert partition.wanted("bank") == ("income", "age", "default")
    assert partition.wanted("bank", label=False) == ("income", "age")
    assert partition.wanted("telco") == ("calls", "data_mb")


def test_equal_and_hashed_by_content_and_order():
    assert two() == two()
    assert hash(two()) == hash(two())
    assert pickle.loads(pickle.dumps(two())) == two()  # noqa: S301 — our own bytes
    assert two() != FeaturePartition(dict(reversed(TWO.items())), label=("bank", "default"))
    with pytest.raises(AttributeError):
        two().label = ("telco", "default")


def test_a_party_may_hold_only_the_label():
    partition = FeaturePartition({"bank": ["income"], "court": []}, label=("court", "verdict"))
    assert partition.columns("court") == ()
    assert partition.wanted("court") == ("verdict",)


def test_explicit_blocks_keep_the_declared_order_and_give_a_canonical_one():
    partition = FeaturePartition(
        {"a": ["x0", "x1", "x2"], "b": ["x3"], "c": []}, ("c", "y"), blocks={"b": [["x3"]], "a": [["x2", "x0"], ["x1"]]}
    )
    assert partition.blocks == (("a", ("x2", "x0")), ("a", ("x1",)), ("b", ("x3",)))
    assert partition.columns("a") == ("x0", "x1", "x2")
    assert partition.canonical_columns("a") == ("x2", "x0", "x1")
    assert two().canonical_columns("telco") == ("calls", "data_mb")


@pytest.mark.parametrize("blocks", [None, {"bank": [["age"], ["income"]], "telco": [["calls", "data_mb"]]}])
def test_round_trip_through_toml(blocks):
    import json

    partition = two(blocks=blocks)
    plain = partition.to_dict()
    # JSON arrays of text are TOML arrays too.
    text = f"label = {json.dumps(plain['label'])}\n"
    for table in plain.keys() - {"label"}:
        text += f"[{table}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in plain[table].items())
    assert FeaturePartition.from_dict(tomllib.loads(text)) == partition


def test_repr_is_an_aligned_table():
    assert repr(two()) == (
        "FeaturePartition: 2 parties, 4 features, label 'default' at bank\n"
        "  bank   2  income, age\n"
        "  telco  2  calls, data_mb"
    )


def test_repr_stays_short():
    partition = FeaturePartition.from_sizes({f"p{k}": 100 for k in range(200)})
    lines = repr(partition).splitlines()
    assert len(lines) == 12
    assert all(len(line) <= 120 for line in lines)
    assert lines[0].startswith("FeaturePartition: 200 parties, 20,000 features")
    assert lines[1].endswith(" more")
    assert lines[-1] == "  … and 190 more parties"


WRONG = {
    "one name for two columns": (
        lambda: FeaturePartition({"bank": ["age"], "telco": ["age", "bank.age"]}, ("bank", "y")),
        "'bank': 'age' and 'telco': 'bank.age'",
        "rename one",
    ),
    "listed twice": (
        lambda: FeaturePartition({"bank": ["age", "age"]}, ("bank", "y")),
        "party 'bank'",
        "'age'",
        "twice",
    ),
    "label is a feature": (
        lambda: FeaturePartition({"bank": ["x", "y"], "telco": ["z"]}, ("bank", "y")),
        "column 'y' is a feature of 'bank' and also the label",
        "rename one",
    ),
    "two of one name": (lambda: FeaturePartition([("bank", ["a"]), ("bank", ["b"])], ("bank", "y")), "named 'bank'"),
    "two of one name in a deal": (
        lambda: FeaturePartition.random(["a", "b"], ["bank", "bank"], label="y", seed=0),
        "two parties are named 'bank'",
    ),
    "case alone": (
        lambda: FeaturePartition({"Bank": ["a"], "bank": ["b"]}, ("bank", "y")),
        "'Bank' and 'bank'",
        "rename one",
    ),
    "empty party name": (lambda: FeaturePartition({"": ["a"]}, ("", "y")), "party's name", "not ''"),
    "empty column name": (lambda: FeaturePartition({"a": [" "]}, ("a", "y")), "party 'a'", "not ' '"),
    "path as a name": (lambda: FeaturePartition({"../a": ["x"]}, ("../a", "y")), "'../a'", "use 1 to 64 letters"),
    "no party": (lambda: FeaturePartition({}, ("a", "y")), "at least one party"),
    "a text for a list": (lambda: FeaturePartition({"a": "age"}, ("a", "y")), "party 'a'", "list", "'age'"),
    "idle party": (lambda: FeaturePartition({"a": ["x"], "b": []}, ("a", "y")), "party 'b'", "leave it out"),
    "label party unknown": (
        lambda: FeaturePartition({"bank": ["x"]}, ("bnk", "y")),
        "label 'y'",
        "'bnk' (did you mean 'bank'?)",
        "no columns, []",
    ),
    "label no pair": (lambda: FeaturePartition({"bank": ["x"]}, "y"), '["PARTY", "COLUMN"]', "not 'y'"),
    "blocks leave one out": (
        lambda: two(blocks={"bank": [["age"]], "telco": [["calls", "data_mb"]]}),
        "column 'income' of party 'bank' is in no block",
    ),
    "blocks overlap": (
        lambda: two(blocks={"bank": [["age", "income"], ["age"]], "telco": [["calls", "data_mb"]]}),
        "column 'age' is in two blocks of party 'bank'",
    ),
    "block spans parties": (
        lambda: two(blocks={"bank": [["age", "income", "calls"]], "telco": [["data_mb"]]}),
        "block of party 'bank'",
        "column 'calls' of party 'telco'",
    ),
    "block of an unknown column": (
        lambda: two(blocks={"bank": [["age", "incom"]]}),
        "party 'bank'",
        "'incom' (did you mean 'income'?)",
    ),
    "block of an unknown party": (lambda: two(blocks={"bnk": [["age"]]}), "blocks", "'bnk' (did you mean 'bank'?)"),
    "empty block": (lambda: two(blocks={"bank": [[]]}), "party 'bank'", "leave it out"),
    "unknown owner": (lambda: two().owner("incme"), "'incme' (did you mean 'income'?)"),
    "unknown party": (lambda: two().columns("telko"), "'telko' (did you mean 'telco'?)"),
    "table lacks a column": (
        lambda: two().check(["income", "age", "cals", "data_mb", "default"]),
        "column 'calls' of party 'telco'",
        "(did you mean 'cals'?)",
    ),
    "table lacks the label": (
        lambda: two().check(["income", "age", "defualt"], "bank"),
        "label 'default' of party 'bank'",
        "(did you mean 'defualt'?)",
    ),
    "unknown key": (
        lambda: FeaturePartition.from_dict({"partys": {}, "label": ["a", "y"]}),
        "'partys' (did you mean 'parties' or 'sparse'?)",
        "label, parties, blocks, groups, exposure, weight, sparse",
    ),
    "missing key": (
        lambda: FeaturePartition.from_dict({"parties": {"a": ["x"]}}),
        "'label' is missing",
        'label = ["PARTY", "COLUMN"] under [partition]',
    ),
    "no parties": (
        lambda: FeaturePartition.from_dict({"label": ["a", "y"]}),
        "'parties' is missing",
        'PARTY = ["COLUMN", ...] for each under [partition.parties]',
    ),
    "key of the wrong type": (
        lambda: FeaturePartition.from_dict({"parties": ["a"], "label": ["a", "y"]}),
        "'parties' must be a table",
    ),
    "sizes and names": (
        lambda: FeaturePartition.from_sizes({"a": 2, "b": 2}, columns=["p", "q", "r"]),
        "add up to 4",
        "3 columns",
    ),
    "negative size": (lambda: FeaturePartition.from_sizes({"a": -1}), "party 'a'", "at least 0, not -1"),
    "more parties than columns": (
        lambda: FeaturePartition.random(["a", "b"], 3, label="y", seed=0),
        "2 columns",
        "3 parties",
    ),
    "no prefix": (
        lambda: FeaturePartition.by_prefix({"bank": "b_"}, ["b_x", "x"], ("bank", "y")),
        "column 'x'",
        "name its owner in FeaturePartition(...)",
    ),
    "label without a prefix": (
        lambda: FeaturePartition.by_prefix({"bank": "b_"}, ["b_x"], "y"),
        "column 'y'",
        "label=(party, column)",
    ),
    "one prefix for two": (
        lambda: FeaturePartition.by_prefix({"a": "x", "b": "x"}, ["x1"], ("a", "y")),
        "prefix 'x' stands for both 'a' and 'b'",
    ),
    "prefix of nothing": (
        lambda: FeaturePartition.by_prefix({"a": "x", "b": "z"}, ["x1"], ("a", "y")),
        "prefix 'z' of party 'b'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_problem_and_the_remedy(case):
    attempt, *facts = WRONG[case]
    with pytest.raises(PartitionError) as caught:
        attempt()
    assert [fact for fact in facts if fact not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


def test_from_sizes():
    partition = FeaturePartition.from_sizes({"a": 1, "b": 2}, columns=["p", "q", "r"], label=("b", "t"))
    assert partition == FeaturePartition({"a": ["p"], "b": ["q", "r"]}, ("b", "t"))
    assert FeaturePartition.from_sizes({"a": 1}).label == ("a", "y")


def test_random_deals_all_columns_and_repeats():
    columns = [f"c{j}" for j in range(20)]
    first = FeaturePartition.random([*columns, "y"], 3, label="y", seed=5)
    assert first == FeaturePartition.random(columns, 3, label="y", seed=5)
    assert first != FeaturePartition.random(columns, 3, label="y", seed=6)
    assert sorted(first.features) == sorted(columns)
    assert sorted(len(first.columns(party)) for party in first.parties) == [6, 7, 7]
    for party in first.parties:
        kept = first.columns(party)
        assert list(kept) == sorted(kept, key=columns.index)


def test_random_is_the_same_on_every_machine():
    # sha256sum sorts 0:a (9df3…), 0:c (be08…), 0:b (e021…).
    dealt = FeaturePartition.random(["a", "b", "c"], ["p", "q", "r"], label="y", seed=0)
    assert tuple(dealt.owner(c) for c in "abc") == ("p", "r", "q")


def test_by_prefix_takes_the_longest():
    partition = FeaturePartition.by_prefix(
        {"bank": "bank_", "branch": "bank_eu_", "telco": "telco_"},
        ["bank_a", "telco_b", "bank_eu_c", "telco_y"],
        label="telco_y",
    )
    assert partition == FeaturePartition(
        {"bank": ["bank_a"], "branch": ["bank_eu_c"], "telco": ["telco_b"]}, ("telco", "telco_y")
    )


SHARED = FeaturePartition(
    {"bank": ["age", "income"], "shop": ["age", "y"], "north.shop": ["size"]},
    label=("bank", "y"),
    blocks={"bank": [["income", "bank.age"]], "shop": [["age"], ["shop.y"]], "north.shop": [["size"]]},
    groups={"north.shop": ["sex"], "bank": ["sex"]},
)


def test_a_name_of_several_parties_is_qualified():
    assert SHARED.features == ("bank.age", "income", "shop.age", "shop.y", "size")
    assert (SHARED.label, SHARED.label_column) == (("bank", "y"), "bank.y")
    assert SHARED.group_columns == ("bank.sex", "north.shop.sex")
    assert SHARED.blocks[:2] == (("bank", ("income", "bank.age")), ("shop", ("shop.age",)))
    assert [SHARED.owner(name) for name in ("shop.age", "bank.y", "north.shop.sex")] == ["shop", "bank", "north.shop"]
    assert [SHARED.local(name) for name in ("shop.age", "bank.y", "income", "other")] == ["age", "y", "income", "other"]
    given = {"shop.age": "shop.age", "bank.income": "income", "north.shop.size": "size", "x": "x"}
    assert {name: SHARED.named(name) for name in given} == given
    for name, said in (
        ("age", "say which, 'bank.age' or 'shop.age'"),
        ("sex", "say which, 'bank.sex' or 'north.shop.sex'"),
    ):
        with pytest.raises(PartitionError, match=said):
            SHARED.named(name)


def test_a_partition_with_shared_names_is_written_and_read():
    plain = SHARED.to_dict()
    assert plain["parties"]["shop"] == ["age", "y"]
    again = FeaturePartition.from_dict(plain)
    assert again == SHARED
    assert hash(again) == hash(SHARED)
    assert pickle.loads(pickle.dumps(SHARED)) == SHARED  # noqa: S301


def test_names_become_short_when_one_party_is_left_with_them():
    left = SHARED.without(["shop.age", "shop.y"][:1]).without_groups()
    assert left.features == ("age", "income", "shop.y", "size")
    assert left.blocks[0] == ("bank", ("income", "age"))
