"""`fairlead top`: tenants, tiers, backends and the queue of a running gateway, in a terminal.

    feed.py       threads that read the admin API: the live stream, and requests while a view shows them
    controls.py   what the operator has chosen by keys: view, order, filter, pause
    columns.py    what each view shows of a row; cells.py makes text of it
    picture.py    lines of a screen, from the document and the choices: no terminal, no clock
    terminal.py   curses: keys in, lines out

No other command imports these modules. Curses writes only the cells that changed, and starts soonest: with 1,000
tenants in 33 ms and 11 MB. rich takes 198 ms and 20 MB, and reads no keys; textual takes 853 ms and 44 MB.
"""
