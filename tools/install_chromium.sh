#!/bin/sh
# Have a Chromium for the tests that open reports in a browser. Where none can be had they are skipped, and say so.
set -u
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
if ! command -v apt-get >/dev/null 2>&1; then
    echo "no chromium, and no apt-get to install it: the browser tests will be skipped" >&2
    exit 0
fi
as_root=""
if [ "$(id -u)" != 0 ]; then
    if ! sudo -n true 2>/dev/null; then
        echo "no chromium, and no right to install it: the browser tests will be skipped" >&2
        exit 0
    fi
    as_root="sudo -n"
fi
install="$as_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends chromium fonts-dejavu-core"
$install >/dev/null 2>&1 || { $as_root apt-get update --quiet=2 >/dev/null 2>&1; $install >/dev/null 2>&1; } ||
    echo "chromium could not be installed: the browser tests will be skipped" >&2
exit 0
