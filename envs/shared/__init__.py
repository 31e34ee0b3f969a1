"""Parts that several simulators use: checks of arguments, trials in a process, rotations, frustum culling."""
