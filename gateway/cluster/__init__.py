"""One fair order over many processes: one leads and runs the Schedulers, the others send it facts and carry out its
actions.

Everything here is sans-IO: `now` is an argument in seconds of the process's own clock, messages are values. A shell
connects it to sockets, to a store for elections and to the event loop. Read `wire.py` for what is said, `member.py` for
how a process puts the parts together.

The rules, by the numbers that the code cites. A *promise* is how long a follower may carry out the leader's actions; a
*lease* is how long the leader may decide.

Leading

1. An epoch numbers a leadership and only grows: the next is one more than the store's and the highest that the
   candidate knows. A leader that is told of a higher one resigns, and stands again above it.
2. A leader decides once every member of the last list has joined it, or was silent until its old promise surely
   ended. A member joins when its promise to the old leader has ended or was released.
3. A follower pings at t0; the leader answers with what its lease has left, d. The follower carries out actions until
   t0 + 0.98 d by its own clock. It drops those that come later, and closes the connection.
4. A leader checks its lease before each frame. The lease counts from before its renewal was sent, less a margin. The
   store renews it, or a majority of the members does (docs/decisions/0010-a-majority-renews-the-lease.md).

The wire

5. A frame names its pool and its epoch. Each side drops frames of another epoch than the one it has joined.
6. A request's wire id is its member and a number that is never used again. A submission that is known is ignored.
7. A request of a tenant that the registry does not know waits 1 s for the registry; then it is refused.
8. A follower names the backends that it cannot reach. A dispatch there comes back as undelivered.
9. A connection is first in, first out. The facts of one turn are one frame, in their order; of usage, only the newest
   of each request.
10. Facts of all members share one inbox, in the order of arrival. The leader polls when it is empty, or after 1 ms. A
    fact that came before a load is taken in before it.
11. A follower tells what its requests hold at each backend every 0.25 s, a request's first usage and changes of its
    prompt at once, and all usages each second.
12. A reservation grows when usage is told; the leader does not wait for it.
13. Dispatches to a backend are numbered for each member, and the engine's plugin is told member and number.
14. A client that left is one fact. For a request that waits it cancels; for one in flight it ends it with its usage.
    The follower ignores a dispatch that crosses it.
15. A follower answers a withdrawal: kept, once a byte was sent to the client; returned otherwise; nothing after the
    end.
16. An undelivered request goes to the head of its tenant's queue, keeps what it has paid, and is no mark against the
    backend.
17. When a connection is lost, the slots and places of its requests are held until the member's promise has surely
    ended, 2 s after it was heard last. Then they are cancelled, or end as left by the client, and what may run on is
    external load until a measurement says less. A parent that sees a process end ends this at once.

A change of leaders

18. A member that joins tells all that it has, in slices that the leader asks for. What the leader believes in flight
    there and is told as waiting was not delivered; what it is not told has ended; what it does not know is adopted or
    submitted.
19. The newest checkpoint counts, by epoch and number, whether the store or a member has it.
20. A running request is adopted with its backend, reservation, usage and age. It takes its slot, whatever the limit,
    and what the checkpoint counts as charged is not charged again.
21. A waiting request is told with its age, what it has paid, and its hold. A hold begins anew.
22. A leader dispatches to a backend once it was measured after everything was adopted. That measurement sets the
    external load at once.
23. The dead leader's last dispatches run where they arrived, and wait elsewhere. What its own clients ran is external
    load until a measurement says less.
24. A deadline is a request's age and wait, not the leadership's. Without a leader a follower refuses at the deadline
    by its own clock, or after 5 s.
25. A member that reaches no leader, and may not be elected, leads itself: it adopts its own requests, and each limit
    is divided by the most members of the last 60 s.

Failures

26. A follower pings every 0.25 s; silence of 1 s is a lost connection. With more than 4 MB or 1 s unsent a follower
    refuses new calls; with more than 8 MB or 2 s unsent the leader drops it.
27. When a call of one follower fails, the leader measures that backend now, and sends that follower nothing there. It
    is closed for all when its health fails, by the leader's measurements and what members report. A leader that alone
    reaches no backend hands over.
28. Processes of unequal versions do not join each other. A frame has at most 1 MiB.
"""
