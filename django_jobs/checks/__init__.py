"""Django's system checks of this project: settings, schedules, delivery."""
