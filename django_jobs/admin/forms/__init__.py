"""What the forms have in common: fields of arguments, and what two clicks or two people do."""
