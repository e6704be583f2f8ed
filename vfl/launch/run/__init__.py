"""Files and records of one run: result, log, certificate facts, timing, warnings, verification."""
