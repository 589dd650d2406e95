"""Tests of `mbcal.types`."""  # noqa: A005 - a folder is called as the package that it tests
