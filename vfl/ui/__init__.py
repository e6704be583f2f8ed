"""Local page on the jobs, runs and ledgers of a folder: `vfl ui`. It only reads.

The page shows what the commands plan, verify, report and ledger show: public facts, and values released with noise. It opens
no party's data, no timing, and no file of a running tune.

    folder   jobs, runs and ledgers below a folder; nothing else can be asked for
    live     rounds and ε of a run at work, from its log and its ledger
    pages    HTML of every page
    server   HTTP on the loopback address, with a token in the URL
"""

from vfl.ui.server import Server as Server
