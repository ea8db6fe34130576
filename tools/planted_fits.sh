#!/bin/sh
# planted_fits.sh - every fault of tests/fuzz/planted can still be planted: its file is there, the
# old lines are in it exactly once, and what it is built from is in the tree. Part of `make check`,
# which has no time to run them.
cd "$(dirname "$0")/.." || exit 99
exec perl -0 -ne '
    for (map { split } /^(?:sources|parser): (.*)$/mg) {
        my @found = grep { -e } glob;
        @found or print "$ARGV: no $_\n" and $bad++;
    }
    while (/^fault: (.*)\nfile: (.*)\n((?:-.*\n)+)/mg) {
        my ($fault, $file, $old) = ($1, $2, $3);
        $old =~ s/^-//mg;
        open my $f, "<", $file or print "$ARGV: $fault: no $file\n" and $bad++ and next;
        my $n = () = scalar(<$f>) =~ /\Q$old\E/g;
        $n == 1 or print "$ARGV: $fault: its old lines are $n times in $file\n" and $bad++;
        $all++;
    }
    END { print "$all faults\n"; exit(($bad || $all < 100) ? 1 : 0) }
' tests/fuzz/planted/*.txt
