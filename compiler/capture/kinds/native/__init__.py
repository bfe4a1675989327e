"""Methods of C classes, called during capture: tables of cases, by name of the method and kind of its owner."""
