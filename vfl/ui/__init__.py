"""Local web page about the jobs, runs and ledgers of a folder, for `vfl ui`. The page only reads files.

The page shows what the commands plan, verify, report and ledger show: public facts, and values released with noise. The page
does not read any party's data, any timing, or any file of a tuning run in progress.

    folder   jobs, runs and ledgers below a folder; a request can name only these
    live     rounds and ε of a run in progress, from its log and its ledger
    pages    HTML of every page
    work     threads that read jobs, runs and ledgers, with a limit on the waiting time
    server   HTTP on the loopback address, with a token in the URL
"""

from vfl.ui.server import Server as Server
