"""Every statement that changes a job; nothing else changes one."""
