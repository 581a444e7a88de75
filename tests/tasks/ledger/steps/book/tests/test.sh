#!/bin/bash
. /tests/helper.sh
[ -e setup.sh ] && { reward 0; exit; }
if [ "$(sum ledger)" = "$EXPECTED" ]; then reward 1; elif [ -s ledger ]; then reward 0.5; else reward 0; fi
