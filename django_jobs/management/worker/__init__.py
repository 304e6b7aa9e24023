"""What jobworker shows and looks at for the people who start it."""
