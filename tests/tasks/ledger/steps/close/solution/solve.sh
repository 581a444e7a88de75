#!/bin/bash
total=0
while read -r amount; do total=$((total + amount)); done < ledger
echo "total $total" > closed
rm receipts.txt
