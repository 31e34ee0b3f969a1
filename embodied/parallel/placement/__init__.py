"""Where the processes of a run and its simulators are: a table, how it is made, and who starts the processes."""
