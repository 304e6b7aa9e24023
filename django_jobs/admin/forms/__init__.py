"""What the forms have in common: fields of arguments and times, what two clicks or people do."""
