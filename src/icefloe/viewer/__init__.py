"""The web viewer: a read-only page about one repository, for one user on this machine.

`server` serves it on loopback, `guard` decides who is let in, `answers` says what the page asks
for, `sampling` reads no more of an array than a picture needs. `page/` is the front end: HTML,
CSS and modules of JavaScript, as they are.
"""
