from fasteraa.cli import main

main()
