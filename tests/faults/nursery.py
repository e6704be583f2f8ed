"""A process that has imported everything and gives birth to `vfl` commands, so that fifty of them do not take minutes.

Reads one JSON object a line: {"argv": [...], "cwd": ..., "draws": file}. Answers with the child's process id, and with its
exit status when it has ended. Each child leads a process group, and notes the key of every release in the file `draws`
before the noise is drawn, in a way that survives its being killed.
"""

from __future__ import annotations

import json
import os
import sys
import traceback


def note_draws(path: str) -> None:
    """Have both noise sources write down what they are asked for, first thing."""
    from vfl.privacy.noise import CryptographicNoise, SeededNoise

    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for source in (CryptographicNoise, SeededNoise):
        stream = source.stream

        def noted(self, key, stream=stream):
            os.write(fd, f"{key.round} {key.part} {key.attempt}\n".encode())
            return stream(self, key)

        source.stream = noted


def run(order: dict) -> None:
    """Be `vfl ARGV`."""
    from vfl.cli import main

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
    except BaseException:  # noqa: BLE001  # whatever it was, this child must not go on as a nursery
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Answer orders until the input ends."""
    import numpy as np

    import vfl.cli.ledger
    import vfl.cli.resume
    import vfl.cli.run
    import vfl.launch.engines.inprocess
    import vfl.launch.run.result  # noqa: F401
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
