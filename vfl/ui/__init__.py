"""Local page about the jobs, runs and ledgers of a folder, for `vfl ui`. It only reads.

The page shows the same as the commands plan, verify, report and ledger: public facts, and values released with noise. It reads
no party's data, no timing, and no file of a running tune.

    folder   jobs, runs and ledgers below a folder, the only things that a request can name
    live     rounds and ε of a run in progress, from its log and its ledger
    pages    HTML of every page
    work     work on each item in a thread of its own, which nobody waits for longer than a limit
    server   HTTP on the loopback address, with a token in the URL
"""

from vfl.ui.server import Server as Server
