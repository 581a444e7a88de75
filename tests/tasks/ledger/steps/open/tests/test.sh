#!/bin/bash
. /tests/helper.sh
if [ -f ledger ] && [ ! -s ledger ]; then reward 1; else reward 0; fi
