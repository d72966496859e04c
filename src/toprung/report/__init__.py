"""Tables and plots made from measurements; nothing here measures."""
