"""One module per topic; each lists its cases in `CASES`. New modules are found by themselves."""
