"""Connects the ranks of a group: authenticated sockets, and on one host shared segments.

=================  ==================================================================================================
`connection`       what one connection is for, and its socket options
`plan`             which ranks of a group connect at once, and the file descriptors that this needs
`outgoing`         makes the connections for which this rank is the lower of the two
`connector`        accepts the others, and hands all connections of a group over to an engine
`late`             makes an engine's further data connections, each on its first use
`segments`         passes shared segments between the ranks of one host
`descriptors`      checks that this process has file descriptors and threads left
=================  ==================================================================================================
"""
