"""`toolkit replay`: a record of decisions, played again or beside another policy."""
