"""The arguments and options of each command; the modules beside this folder do the work."""
