"""From anyone's files to the table that training reads."""
