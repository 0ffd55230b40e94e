"""The tests mirror the packages; `processes` start real ones, `repository` reads the files of the project."""
