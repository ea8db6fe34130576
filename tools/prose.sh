#!/bin/sh
# prose.sh - finds words and sentences that the style of this tree bans.
#
#   tools/prose.sh                 compares the hits of each folder with tools/prose_limits
#   tools/prose.sh PATH...         prints the hits in these files and folders: file:line: rule: text
#   tools/prose.sh --count [PATH]  prints the number of hits per folder and rule
#   tools/prose.sh --limits        prints a new tools/prose_limits
#
# Rules: "columns", a line of code or a script with more than 100 columns outside of clang-format off;
# "words", a sentence of a README or of docs/ with more than 40 words; "dialect", a phrase of the table
# of phrases; "old TERM", a word or name that the glossary replaces. The tables are at the end of this
# file. A limit may only fall: lower it in the commit that removes hits.
exec perl -x "$0" "$@"
#!perl
use strict;
use warnings;

my $top = $ENV{srcdir} || $0 =~ s{/?tools/prose\.sh$}{}r || '.';
chdir $top or die "prose.sh: $top: $!\n";

# Texts that are data, that others wrote, or that name the old words on purpose.
my $exempt = qr{^(tests/data|docs/lab|docs/glossary\.md|bench/configs|models/[^/]+/|sim/models|LICENSE
    |tools/prose(\.sh|_limits)|tests/fuzz/planted|tests/scenarios/[^/]*\.(log|trs))}x;

# The demo models are called numbers and recall; their data has the keys question and answer.
my $demo_models = qr{^(tools/(demo\.sh|train_demo\.py|chat_cases\.py)|models/README\.md)$};
# A conversation has turns, and some special tokens have the word in their names.
my $conversations = qr{^(tools/(chat_cases|train_demo)\.py|bench/traces\.py)$};

my (%words, @phrases, $any_phrase, @dialect);
read_tables();

my $mode = @ARGV && $ARGV[0] =~ /^--(count|limits)$/ ? do { shift; $1 } : @ARGV ? 'list' : 'check';
my (%count, %by_rule);
check_file($_) for files(@ARGV ? @ARGV : '.');
exit report();

# ---- tables

sub read_tables {
    my $table = '';
    while (my $line = <DATA>) {
        chomp $line;
        if ($line =~ /^== (\w+)/) { $table = $1; next }
        next if $line =~ /^\s*(#|$)/;
        if ($table eq 'dialect') { $line =~ s/ / +/g; push @dialect, $line; next }
        my ($where, $path, $rest) = split ' ', $line, 3;
        $path = $path eq '*' ? qr// : qr{^(?:$path)};
        if ($table eq 'words') {
            my ($new, @old) = split /\s*[:,]\s*/, $rest;
            push @{ $words{$_} }, [$where, $path, $new] for @old;
        } else {
            my ($new, $pattern) = split /: /, $rest, 2;
            push @phrases, [$where, $path, $new, qr/$pattern/];
        }
    }
    my $any = join '|', @dialect;
    @dialect = (qr/$any/);
    $any = join '|', map { $_->[3] } @phrases;
    $any_phrase = qr/$any/;
}

# ---- files

sub files {
    my @found;
    open my $find, '-|', 'find', (map { s{^\./}{}r } @_),
        qw{( -name .git -o -name build* -o -name _* -o -name autom4te.cache -o -name m4 -o -name lagan-[0-9]* )
        -prune -o -type f -print} or die "prose.sh: find: $!\n";
    while (<$find>) {
        chomp;
        s{^\./}{};
        next if $_ =~ $exempt;
        push @found, $_ if m{\.(c|h|cu|cuh|md|sh|py|ac|inc|map|script|conf|service\.in)$}
            || m{(^|/)(Makefile\.am|bootstrap)$};
    }
    return sort @found;
}

sub check_file {
    my ($file) = @_;
    open my $in, '<', $file or die "prose.sh: $file: $!\n";
    my $text = do { local $/; <$in> };
    columns($file, $text) unless $file =~ /\.md$/;
    my @parts = $file =~ /\.(c|h|cu|cuh)$/ ? parts_of_c($text)
        : $file =~ /\.md$/ ? parts_of_markdown($file, $text) : parts_of_script($text);
    for (@parts) {
        my ($kind, $line, $part) = @$_;
        old_words($file, $kind, $line, $part);
        dialect($file, $line, $part) if $kind ne 'code';
    }
}

# The parts of a file: [code | text, first line, content]. In a text the marks of comments and the ends
# of lines are blanks or "\n", as many as there were characters, so that an offset gives a line.
sub parts_of_c {
    my ($text) = @_;
    my (@parts, $line);
    $line = 1;
    while ($text =~ m{\G(.*?)(/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|\z)}gcs) {
        my ($code, $other) = ($1, $2);
        push @parts, ['code', $line, $code] if $code =~ /\S/;
        $line += $code =~ tr/\n//;
        last if $other eq '';
        if ($other =~ m{^/[*/]}) {
            (my $body = $other) =~ s{^/[*/]|\*/$}{  }g;
            $body =~ s{(\n[ \t]*)\*}{$1 }g;
            push @parts, ['text', $line, $body];
        } elsif ($other =~ /^"/) {
            my $is_file = $code =~ /#\s*include\s*$/;
            push @parts, [$other =~ / / ? 'text' : 'code', $line, $other] unless $is_file && $other !~ m{/};
        }
        $line += $other =~ tr/\n//;
    }
    return @parts;
}

sub parts_of_markdown {
    my ($file, $text) = @_;
    my (@parts, @paragraph);
    my ($n, $fence, $first) = (0, 0, 0);
    my $end = sub {
        return unless @paragraph;
        my $body = join "\n", @paragraph;
        my $prose = $body;
        while ($body =~ /`([^`]*)`/g) { push @parts, ['code', $first + (substr($body, 0, $-[0]) =~ tr/\n//), $1] }
        $prose =~ s/`[^`]*`/join '', map { $_ eq "\n" ? $_ : 'X' } split m{}, $&/ge;
        push @parts, ['text', $first, $prose];
        sentences($file, $first, $prose) unless $prose =~ /^\s*\|/;
        @paragraph = ();
    };
    for my $line (split /\n/, $text) {
        $n++;
        if ($line =~ /^\s*```/) { $end->(); $fence = !$fence; next }
        if ($fence) { push @parts, ['code', $n, $line]; next }
        $end->() if $line =~ /^\s*($|\||#|[-*] |\d+\. )/;
        next if $line !~ /\S/;
        $first = $n unless @paragraph;
        push @paragraph, $line;
        $end->() if $line =~ /^\s*[|#]/;
    }
    $end->();
    return @parts;
}

sub parts_of_script {
    my ($text) = @_;
    my (@parts, $n);
    for my $line (split /\n/, $text) {
        $n++;
        if ($line =~ /^(.*?)(?:^|(?<=\s))(#.*)$/) { push @parts, ['code', $n, $1], ['text', $n, $2] }
        else { push @parts, ['code', $n, $line] }
    }
    return @parts;
}

# ---- rules

sub columns {
    my ($file, $text) = @_;
    my ($n, $table) = (0, 0);
    for my $line (split /\n/, $text) {
        $n++;
        $table = $1 eq 'off' if $line =~ /clang-format (off|on)/;
        next if length $line <= 100 || $table;
        utf8::decode(my $characters = $line);
        hit($file, $n, 'columns', length($characters) . ' columns') if length $characters > 100;
    }
}

sub old_words {
    my ($file, $kind, $line, $part) = @_;
    my $letter = substr $kind, 0, 1;
    while ($part =~ /([A-Za-z]+)/g) {
        my $rules = $words{ lc $1 } or next;
        my ($word, $at) = ($1, $-[0]);
        for my $rule (@$rules) {
            my ($where, $path, $new) = @$rule;
            next unless index($where, $letter) >= 0 && $file =~ $path;
            my $before = substr $part, 0, $at;
            my $after = substr $part, $at + length $word, 9;
            next if lc $word eq 'recall' && $after =~ /^-gemma3/;
            next if lc $word eq 'pause' && ($before =~ /_mm_$/ || $after =~ /^\(\)/); # pause(2)
            next if lc $word eq 'halt' && $after =~ /^_on_error/; # TSAN_OPTIONS
            next if lc $word eq 'legacy' && $after =~ /^\.json/; # a file name of transformers
            next if $word =~ /^(recalls?|questions?|answers?)$/i && $file =~ $demo_models;
            next if $word =~ /^turns?$/i && $file =~ $conversations;
            next if lc $word eq 'turn' && $before =~ /\b(in|by) $|<\|?$|_of_$/; # <start_of_turn>
            next if lc $word =~ /^rows?$/ && $before =~ /stat_$/; # of a table of statistics
            next if lc $word eq 'answer' && $before =~ /"$/ && $file =~ m{^tests/text/}; # JSON keys
            next if lc $word eq 'turns' && $after =~ /^ (into|out|off|on|it)/;
            next if lc $word eq 'blank' && $after =~ /^ line/;
            hit($file, $line + ($before =~ tr/\n//), "old $new", excerpt($part, $at));
            last;
        }
    }
    return unless $part =~ $any_phrase;
    for my $rule (@phrases) {
        my ($where, $path, $new, $pattern) = @$rule;
        next unless index($where, $letter) >= 0 && $file =~ $path;
        while ($part =~ /$pattern/g) {
            hit($file, $line + (substr($part, 0, $-[0]) =~ tr/\n//), "old $new", excerpt($part, $-[0]));
        }
    }
}

sub dialect {
    my ($file, $line, $part) = @_;
    (my $flat = $part) =~ tr/\n/ /;
    while ($flat =~ /$dialect[0]/g) {
        hit($file, $line + (substr($part, 0, $-[0]) =~ tr/\n//), 'dialect', excerpt($part, $-[0]));
    }
}

sub sentences {
    my ($file, $line, $prose) = @_;
    return if $prose =~ /^\s*#/;
    while ($prose =~ /\G\s*(.+?(?:[.!?](?=\s|$)|\z))/gcs) {
        my ($sentence, $at) = ($1, $-[1]);
        my $n = () = $sentence =~ /\S*\w\S*/g;
        hit($file, $line + (substr($prose, 0, $at) =~ tr/\n//), 'words', "$n words: " . excerpt($prose, $at))
            if $n > 40;
    }
}

# ---- report

sub excerpt {
    my ($text, $at) = @_;
    my $from = $at > 20 ? $at - 20 : 0;
    (my $s = substr $text, $from, 60) =~ s/\s+/ /g;
    return $s;
}

# The folder of a file in prose_limits: two levels below worker/, gpu/ and tests/, one elsewhere.
sub folder {
    my ($file) = @_;
    return $1 if $file =~ m{^((?:worker|gpu|tests|daemon)/[^/]+)/};
    return $file =~ m{^([^/]+)/} ? $1 : '.';
}

sub hit {
    my ($file, $line, $rule, $text) = @_;
    my $folder = folder($file);
    $count{$folder}++;
    $by_rule{$folder}{$rule}++;
    return if $mode ne 'list';
    print "$file:$line: $rule: $text\n";
}

sub report {
    if ($mode eq 'list') { return %count ? 1 : 0 }
    if ($mode eq 'limits') { print map { "$_ $count{$_}\n" } sort keys %count; return 0 }
    if ($mode eq 'count') {
        for my $folder (sort keys %count) {
            my $rules = $by_rule{$folder};
            print "$folder $count{$folder}\n";
            printf "  %5d %s\n", $rules->{$_}, $_
                for sort { $rules->{$b} <=> $rules->{$a} || $a cmp $b } keys %$rules;
        }
        return 0;
    }
    my (%limit, $bad, $lower);
    open my $in, '<', 'tools/prose_limits' or die "prose.sh: tools/prose_limits: $!\n";
    while (<$in>) { $limit{$1} = $2 if /^(\S+) (\d+)/ }
    for my $folder (sort keys %{ { %count, %limit } }) {
        my ($n, $max) = ($count{$folder} || 0, $limit{$folder} || 0);
        if ($n > $max) { print "$folder: $n hits, at most $max are allowed; see tools/prose.sh $folder\n"; $bad = 1 }
        $lower = 1 if $n < $max;
    }
    print "fewer hits than allowed; run tools/prose.sh --limits >tools/prose_limits\n" if $lower && !$bad;
    return $bad ? 1 : 0;
}

# The tables. words: where (c: identifiers and code, t: comments, texts, documentation), path (*: all),
# new term: old words, as whole words or as parts of a name between "_". phrases: where, path, new
# term: regular expression. dialect: regular expressions; a blank stands for several, or the end of a line.
__DATA__
== words
ct ctl/|tests/ctl/|sim/|tests/sim/  request: job, jobs
c  daemon/                          request: row, rows
t  *                                prompt: question, questions
ct *                                output: answer, answers
ct daemon/|worker/[a-z_]+\.[ch] output: piece, pieces
ct *                                received or delivered: told, untold, said, heard, hears, hear
ct *                                slot: seat, seats, seated, sit, sits, sitting
ct worker/(sched|kv)/|tests/(sched|kv)/ sequence group: family, families
c  *                                step or iteration: turn, turns
t  *                                step, iteration or fairness tag: turn, turns
ct *                                reserve or check: promise, promises, promised
ct *                                preempt or suspend: pause, pauses, paused, pausing, halt, halts, halted
ct worker/                          commit: settle, settles, settled
ct *                                draft token: guess, guesses, guessed
ct *                                arrival number: ticket, tickets
ct *                                reference or prefix in flight: twin, twins
ct *                                suppressed token: ban, bans, banned
ct *                                logit bias: nudge, nudges
c  worker/(kv|sched)/               tree export: label, labels
c  worker/(kv|sched)/               cache namespace: space, spaces
ct *                                free or cached block: dull, blank
ct worker/(kv|sched|exec)/|worker/[a-z_]+\.[ch] onboard: fetch, fetches, fetched, fetching
ct worker/(kv|sched)/|worker/[a-z_]+\.[ch] host tier: cell, cells
ct *                                replacement or previous worker: predecessor, predecessors, successor, successors
ct *                                replacement or handover state: heir, heirs, heirloom, heirlooms, legacy
c  *                                fd channel: hand
t  *                                pass: lend, lends, lent
ct *                                ledger log: mirror, mirrors, mirrored, recall, recalls, recalled
c  daemon/|tests/daemon/            re-exec: succeed
ct *                                preflight: rehearse, rehearses, rehearsed, rehearsal
c  daemon/                          rolling restart: roll
t  *                                again: anew
ct *                                stray_write_possible: wild, doubtful
ct *                                heartbeat: beat, beats, beaten
ct *                                quarantine: blame, blames, blamed, acquit, acquits, acquitted
ct *                                reap: bury, buries, buried, mourn, mourns, mourned
ct *                                protocol error: lied, believe, believes, believed
ct *                                CPU starvation: excuse, excuses, excused
c  (ipc|daemon|worker|tests|bench|sim)/ channel: link
ct *                                doorbell: bell, bells
ct *                                listener: door, doors
ct *                                timeout: lease, leases, patience, patient
c  (daemon|client|ipc|ctl|include|tests)/ ack_window: win
ct *                                validate: judge, judges, judged
ct *                                device interface: waist
ct *                                partition: rung, rungs, ladder, ladders
c  worker/                          partition: division, divisions
ct *                                partition controller: steer, steers, steered, steering
ct *                                rank: follower, followers
c  gpu/                             collective: meet, meets
ct *                                batch-invariant: company
ct *                                interface: seam, seams
ct *                                free space: room, rooms
ct *                                reference: naive
ct *                                harness: rig, bed
c  tests/worker/|sim/               scenario: play, plays
c  *                                renamed op: sparsify
== phrases
c  daemon/  request: \bstruct row\b|\bROW_[A-Z]
c  worker/(sched|exec)/|worker/[a-z_]+\.[ch]|sim/ n_tokens: \b(n|max)_rows\b|\bstep_rows\b
c  (worker|gpu|sim|tests)/ segment: \bstruct run\b|\bn_runs\b
c  *        prefill, decode: \b(WORK|SEQ|LANE|STEP)_(PROMPTS?|CONTEXT|GENERATION|ANSWERS?)\b
t  *        preempt: \b(gives?|gave|giving) way\b|\bputs? back\b
t  *        retire: \blooks? on\b
c  *        table edit: \bEDIT_(ROW|END)\b
t  *        pass: \b(its|the|a|one) hand\b|\bgives? up\b
t  *        re-exec: \b(begins?|began|beginning) again\b
t  *        hung: \b(stands?|stood) still\b
ct *        panic message: \blast[ _]words?\b
t  *        protocol error: \bcannot be true\b
ct *        launch context: \bk_lane\b
ct *        generic: \b(attend|matmul|experts)_any\b
ct *        weight-table flag: \bW_(BELOW|TURNED|LOOKED_UP|BESIDE|ALONE|LOCAL|GLOBAL)\b
ct *        logit rows: \bends_few\b
ct *        reason_name: (->|\.)word\b
ct *        harness: \bby_hand\b
ct *        public name: \blagan_(why|patience|top|requests_paused|refused_total)\b|\bLAGAN_EVENT_LOST\b
ct *        option: \b(prompt_batch|source_batch|prompt_rate|first_come)\b|\bbatch_wait\b(?!_timeout)
ct *        option: \b(text\.cache|split\.target|cuda\.tuned|api\.lease)\b|--(look|waits)\b
ct *        wire key: "(win|n_tok|on_disconnect)"|\bon_disconnect\b
ct *        metric: \b(tokens_(in|out)|(prompt|answer)_steps|split_(context|generation|changes))\b
ct *        metric: \bhost_(used|dropped)\b|(?<!device_)\bidle_ns\b
== dialect
\b[Ww]hoever\b
\b[Nn]obody\b
\b(is|was|are|were|be) told\b
\b[Ww]ho (comes|waits|asks|goes|has|had|is|was|does|needs|wants|takes|gives|reads|gets|may|must|can|else)\b
\bso many\b
\bof which\b
\bof those\b
\b[Ww]hat comes\b
\b(goes|go|went|going) on\b
\b(comes|come|came) back\b
\bno more than that\b
\bfor ever\b
\bbesides?\b[^.]{0,40}\bnothing\b
(?:^|[.:;])\s*(?:Of (?:a|an|what|the|all|its|one|those|each)|Whoever|Who|Whose|What was|What is)(?= )
\bthat of\b
\b(falls?|fell) together\b
\bnone but\b
\bthere and\b[^.]{0,20}\bgone\b
