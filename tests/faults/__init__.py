"""Every fault of the catalogue, made on purpose."""
