"""Speed, measured beside public peers in one process; `make bench` runs every module here."""
