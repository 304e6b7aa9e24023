"""The pages of resources and tenants: the lists, the live numbers of one, and the forms."""
