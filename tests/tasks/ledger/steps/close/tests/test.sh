#!/bin/bash
. /tests/helper.sh
right=0
[ "$(cat closed)" = "total $(sum ledger)" ] && right=1
tidy=0
[ ! -e receipts.txt ] && tidy=1
printf '{"right": %d, "tidy": %d}\n' $right $tidy > /logs/verifier/reward.json
