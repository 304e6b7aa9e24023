"""The process that renews leases, recovers crashed jobs and does maintenance."""
