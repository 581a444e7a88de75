#!/bin/bash
set -eu
cd /app
sed -i -e '/^\[server\]/,/^\[/{s/^port = .*/port = 8443/;s/^tls = .*/tls = on/;/^legacy_auth/d}' \
    -e '/^\[log\]/,/^\[/s/^level = debug/level = warning/' -e 's/^queue = 512$/&\nworkers = 8/' service.ini
cat service.ini
