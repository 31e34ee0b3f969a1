"""What a checkpoint or an exported folder brings into a configuration: its model, its env, its protocol."""
