"""A process that imports everything once and forks `vfl` commands, so that fifty of them do not take minutes.

It reads one JSON object per line: {"argv": [...], "cwd": ..., "draws": file}. It answers with the child's process id,
and with the exit status once the child has ended. Each child leads a process group. Before noise is drawn, the child
writes the key of the release to the file `draws`, which survives a kill.
"""

from __future__ import annotations

import json
import os
import sys
import traceback


def note_draws(path: str) -> None:
    """Make both noise sources record each release before they draw."""
    from vfl.privacy.noise import CryptographicNoise, SeededNoise

    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for source in (CryptographicNoise, SeededNoise):
        stream = source.stream

        def noted(self, key, stream=stream):
            os.write(fd, f"{key.round} {key.part} {key.attempt}\n".encode())
            return stream(self, key)

        source.stream = noted


def run(order: dict) -> None:
    """Run `vfl ARGV` in this process."""
    from vfl.apps.cli import main

    os.setsid()
    os.chdir(order["cwd"])
    output = os.open("output", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    note_draws(order["draws"])
    sys.argv = ["vfl", *order["argv"]]
    code = 1
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001  # after any failure this child must not serve further requests
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Serve requests until the input ends."""
    import numpy as np

    from vfl.kernels import dense as kernels

    kernels.warm(np.dtype(np.float64), private=True)
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            run(json.loads(line))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
