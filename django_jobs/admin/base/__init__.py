"""Shared by all pages: the base class, actions, filters, formatting, pagination."""
