"""Jobs over HTTP: enqueue, ask, cancel and list. Loaded where a project includes its URLs."""
