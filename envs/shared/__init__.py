"""What several simulators use: checks of arguments, cache folder, trials in a process, rotations, frustum culling."""
