"""The pages of failures, grouped by job type and fingerprint."""
