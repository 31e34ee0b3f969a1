"""Where the processes of a run are: their table, made from the keys, and what a dry run says of a planned cluster."""
