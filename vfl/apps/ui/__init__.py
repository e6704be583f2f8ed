"""Local web page about the jobs, runs and ledgers of a folder, for `vfl ui`. The page only reads files.

The page shows what the commands plan, verify, report and ledger show: public facts, and values released with noise. The page
does not read any party's data, any timing, or any file of a tuning run in progress.

    folder   jobs, runs and ledgers below a folder, and rounds and ε of a run in progress; a request can name nothing else
    pages    HTML of every page
    server   HTTP on the loopback address, with a token in the URL; threads read the files, with a limit on the waiting time
"""

from vfl.apps.ui.server import Server as Server
