"""Connects the ranks of a group: authenticated sockets, and on one host shared segments.

=================  ==================================================================================================
`connection`       what one connection is for, and its socket options
`outgoing`         makes the connections for which this rank is the lower of the two
`connector`        accepts the others, and hands all connections of a group over to an engine
`segments`         passes shared segments between the ranks of one host
`descriptors`      checks that this process has file descriptors and threads left
=================  ==================================================================================================
"""
