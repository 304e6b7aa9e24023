"""The pages of schedules, their ticks and backfills."""
