"""The frame of all pages: tabs, breadcrumbs, and pages that are not those of a model."""
