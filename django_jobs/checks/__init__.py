"""System checks of settings, schedules and delivery."""
