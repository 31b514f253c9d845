from encoded_log import encoded, log, same_log  # noqa: F401 (fixtures)
