"""What each command is called with; the work is done by the modules beside this folder."""
